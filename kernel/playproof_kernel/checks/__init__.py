"""What is asked of a run rather than done in it. Nothing here writes an array of one.

It owns nothing.

Modules
-------
translation
    Compares what `corpus` made with the graph, and namespaces with the rule that M6 proves.
guards
    What each guard of the tables says, as a predicate on the arrays.
"""
