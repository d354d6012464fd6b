"""Tile schedules of band attention: a mask as tables of row tiles and their KV blocks, built once."""
