"""The list of chains: from what is known of them to splits without leaks."""
