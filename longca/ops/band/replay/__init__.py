"""Replay of launches: the launches of a call are recorded once, and repeated with other addresses.
`docs/design/triton-versions.md` says what it relies on in Triton, and what happens with other versions."""
