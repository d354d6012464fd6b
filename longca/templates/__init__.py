"""Whole plug-ins to begin with: `longca new` copies one of these files and gives it the user's name. Nothing imports them."""
