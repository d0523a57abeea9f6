package dev.hybridge

/**
 * What an answer or a text must be: JSON that fits a schema, or what a regular expression matches as a whole. Of [Artifact] and
 * [Tokenizer], which make it; it may be closed after them, and serves any number of answers in any threads.
 *
 * JSON is on one line, with the properties in the schema's order; docs/structured.md lists the keywords. An answer that is cut
 * off by its length is not complete.
 */
public class Grammar private constructor(internal val handle: Long) : AutoCloseable {
    /** May come before the end of what follows it; a second one does nothing. */
    override fun close() {
        Native.grammarClose(handle) // which refuses a handle that is closed
    }

    internal companion object {
        private const val JSON_SCHEMA = 0 // hybridge_grammar_kind of hybridge.h
        private const val REGEX = 1

        fun jsonSchema(tokenizer: Long, schema: String): Grammar = open(tokenizer, JSON_SCHEMA, schema)

        fun regex(tokenizer: Long, pattern: String): Grammar = open(tokenizer, REGEX, pattern)

        private fun open(tokenizer: Long, kind: Int, says: String): Grammar {
            val made = LongArray(1)
            expectOk { Native.grammarOpen(tokenizer, kind, says.encodeToByteArray(), made) }
            return Grammar(made[0])
        }
    }
}
