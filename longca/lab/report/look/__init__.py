"""Visual styles by name: a colour and a marker for each kernel and strategy, a drawing for each mask."""
