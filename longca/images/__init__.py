"""Container images: their recipes, obtaining each image once, and the check that it is still the same image."""
