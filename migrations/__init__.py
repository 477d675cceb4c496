"""Alembic migrations of the store. One file a change; migrations/index.py names their order."""
