"""The page and its figures, made only from records. Never imports torch."""
