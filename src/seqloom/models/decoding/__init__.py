"""Decoders and losses for token sequences: beam search, sampling, CRF, CTC."""
