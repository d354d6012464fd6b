"""Files beside the cells: play-offs, repeats, and notes of what tables and pages were made of."""
