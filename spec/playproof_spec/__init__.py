"""The law of playproof: state machines as tables, the typed graph, findings, proofs and certificates."""
