"""The study's claims as code: each is judged by records alone. Never imports torch."""
