"""One file a screen, its stylesheet beside it."""
