"""Groups of cells, by what they change in the plain RNN."""

IDEAS = {
    "plain": "one nonlinearity, without gates: what changes is the recurrent matrix or what is added to it",
    "one gate": "one gate, or gates that share their weights: fewer parameters than a GRU",
    "gru": "a GRU: an update gate, and one more for what the candidate sees",
    "lstm": "an LSTM: a memory beside the output, with gates that write, forget and read",
    "linear": "gates that read the input alone, so that the state enters linearly or unit by unit",
    "differential": "a step of a differential equation",
    "depth": "gates along depth: between the layers of a step or of a stack",
    "memory": "attention to the state, to past outputs or to a memory",
}
