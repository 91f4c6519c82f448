"""The wire: one pure, SDK-free package per provider."""
