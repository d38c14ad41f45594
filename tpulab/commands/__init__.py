"""What each verb of the command line does; ``cli`` chooses the verb.

Modules import rooms inside their functions only, so that ``tpulab --help`` stays instant.
"""
