"""Facts about data, and from them ranked models with measured reasons."""
