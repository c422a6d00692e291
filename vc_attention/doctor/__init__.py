"""`python -m vc_attention.doctor`: what is here, what works and how fast, as one page for a bug report.

`machine` looks at everything that needs no PyTorch; `gpu` runs in a process of its own, since a broken PyTorch or
driver can end a process rather than raise; `page` makes text or JSON of both. No node reaches any of it.
"""
