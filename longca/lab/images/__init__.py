"""Container images: recipes, building or pulling of each image, and checks that an image is unchanged."""
