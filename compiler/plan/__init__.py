"""The plan: the document of decisions that is saved, loaded and compared."""
