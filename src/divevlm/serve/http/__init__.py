"""`divevlm serve`: the OpenAI endpoint of transformers with a method attached, and what a server needs besides.

limits.py     what a request may cost, and how one is refused
request.py    the JSON of a request -> what is asked for, checked
pictures.py   data URLs (and allowed hosts) -> pictures
places.py     a bounded queue
model.py      transformers' model manager, generation thread and chat handler, with pruning
chat.py       one request from its first byte to its last
app.py        routes; run.py: the process
"""
