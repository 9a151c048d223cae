"""Decoders and losses of sequences: beam search, sampling, CRF, CTC."""
