"""Offline jobs: files of requests that are run when nobody waits, and go on after a restart."""
