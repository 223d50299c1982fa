"""What samples allow to be said: how much processes vary, what speaks against one, who is fastest."""
