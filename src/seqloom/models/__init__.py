"""Models: an embedding, a layer and a head, one topology per file."""
