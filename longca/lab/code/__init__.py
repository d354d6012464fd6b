"""The program's own files: those that a module runs, and digests of what they do."""

from longca.lab.code.digest import code_digest

__all__ = ["code_digest"]
