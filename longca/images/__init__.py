"""Container images: their recipes, building or pulling them once, and checks that they are unchanged."""
