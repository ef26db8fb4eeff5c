"""Responses that are kept for a time, so that later requests may go on with them."""

from aegaeon_gateway.conversations.memory import MemoryConversations
from aegaeon_gateway.conversations.model import Bounds, Conversations, Kept
from aegaeon_gateway.conversations.shared import RedisConversations

__all__ = ["Bounds", "Conversations", "Kept", "MemoryConversations", "RedisConversations"]
