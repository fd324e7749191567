"""Tests of what tests rely on: servers, witnesses, checkers, loops. They say nothing about the product."""
