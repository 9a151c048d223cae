"""Public data sets as studies read them: files on disk in, tensors out, with the standard library and torch."""
