/* A library made only of other libraries still needs a source file of its own; this is it. */
typedef int tutti_empty;
