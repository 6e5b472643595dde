"""Tests: `contract` for both savers alike, `unit` without a server, `server` on special ones."""
