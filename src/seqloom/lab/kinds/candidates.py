"""The layers to compare, by what a task requires; `:2` stands for two layers."""

# When time is short, only the first models are kept: a fast one of every family comes first, then its variants.
WHOLE_SEQUENCE = (
    *("gru", "bi_gru", "attn_rnn", "tcn", "lstm", "bi_transformer:2", "gated_deltanet:2", "rnn", "bi_lstm"),
    *("bi_attn_rnn", "gru:2", "attn_rnn:2", "bi_hybrid", "mamba2:2", "mlstm:2"),
    *("bi_linear_transformer:2", "bi_local_transformer:2"),
)
CAUSAL = (
    *("gru", "attn_rnn", "tcn", "lstm", "transformer:2", "gated_deltanet:2", "rnn", "gru:2", "attn_rnn:2"),
    *("lstm:2", "hybrid", "mamba2:2", "mlstm:2", "linear_transformer:2", "local_transformer:2"),
)
ENCODER_DECODER = ("gru", "attn_rnn", "lstm", "transformer:2", "rnn", "gru:2", "tcn", "hybrid", "linear_transformer:2")
BIDIRECTIONAL = ("bi_gru", "bi_attn_rnn", "bi_lstm")  # first for tags, which depend on later tokens too
TAG = (*BIDIRECTIONAL, *(name for name in WHOLE_SEQUENCE if name not in BIDIRECTIONAL))
