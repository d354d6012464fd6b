"""The project's own operators on a GPU. Imported only where they run."""
