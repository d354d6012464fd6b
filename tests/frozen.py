"""Imported last by the server of forked processes: they never look for garbage in what it has imported, which
would copy its memory."""

import gc

gc.freeze()
