"""Libraries of other people, and scripts written for them."""
