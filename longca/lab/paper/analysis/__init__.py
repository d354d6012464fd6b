"""The data of exhibits: rows that are chosen, compared and put into words, as figures and tables share
them."""
