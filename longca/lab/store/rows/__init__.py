"""Records as rows: columns and compressed texts in little memory, kept in a file beside the cells of a large
study."""
