"""detkit: from a recipe to a measured engine, with proof at every step that it is still the same network."""

__version__ = "0.1.0"
