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
        fun jsonSchema(tokenizer: Long, schema: String): Grammar =
            made { Native.grammarJsonSchema(tokenizer, schema.encodeToByteArray(), it) }

        fun regex(tokenizer: Long, pattern: String): Grammar =
            made { Native.grammarRegex(tokenizer, pattern.encodeToByteArray(), it) }

        private inline fun made(body: (LongArray) -> Int): Grammar = Grammar(LongArray(1).also { expectOk { body(it) } }[0])
    }
}
