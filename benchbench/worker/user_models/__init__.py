"""User models: import, description, programs and float64 references. The user's file is executed here."""
