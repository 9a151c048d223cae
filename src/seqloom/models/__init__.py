"""One topology per file: embedding, layer and head."""
