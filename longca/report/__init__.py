"""The page and its figures, from records alone. Never imports torch."""
