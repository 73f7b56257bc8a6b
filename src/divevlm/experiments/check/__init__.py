"""`divevlm check MODEL`: does pruning keep its promises on this checkpoint, and what does it save?"""
