package dev.hybridge

import java.io.File

/**
 * An artifact's `tokenizer.json`: tokens of texts, and texts of tokens. Any number of threads may use one.
 *
 * @throws HybridgeException with [Status.UNREADABLE_FILE], or [Status.INVALID_ARTIFACT] for one that is damaged or of another kind.
 */
public class Tokenizer(file: File) : AutoCloseable {
    internal val handle = LongArray(1).also { made -> expectOk { Native.tokenizerOpen(terminated("the path", file.path), made) } }[0]

    /**
     * Returns the tokens of a text. around: with what begins and ends every text, such as bos; plain: texts of special tokens are
     * text like any other, which is how to read what people type.
     */
    public fun encode(text: String, around: Boolean = true, plain: Boolean = false): LongArray {
        val bytes = text.encodeToByteArray()
        val reading = (if (around) AROUND else 0) or (if (plain) PLAIN else 0)
        return filled { tokens, count -> Native.tokenizerEncode(handle, bytes, reading, tokens, count) }
    }

    /** Returns the text of tokens, without special ones unless they are wanted. */
    public fun decode(tokens: LongArray, skipSpecial: Boolean = true): String =
        text { Native.tokenizerDecode(handle, tokens, skipSpecial, it) }

    /** Returns what gives the text of tokens that come one after the other; close it. */
    public fun stream(skipSpecial: Boolean = true): TextStream = TextStream(this, skipSpecial)

    /** Returns the grammar of JSON that fits a schema. Throws with [Status.INVALID_GRAMMAR] for what cannot be followed. */
    public fun jsonSchema(schema: String): Grammar = Grammar.jsonSchema(handle, schema)

    /** Returns the grammar of what a regular expression matches as a whole, in Rust's syntax; throws likewise. */
    public fun regex(pattern: String): Grammar = Grammar.regex(handle, pattern)

    /** May come before its streams'; a second one does nothing. */
    override fun close() {
        Native.tokenizerClose(handle) // which refuses a handle that is closed
    }

    private companion object {
        const val AROUND = 1
        const val PLAIN = 2
    }
}

/** The text of tokens that come one after the other; a character is held back until all of it is there. */
public class TextStream internal constructor(tokenizer: Tokenizer, skipSpecial: Boolean) : AutoCloseable {
    private val handle = LongArray(1).also { made -> expectOk { Native.textOpen(tokenizer.handle, skipSpecial, made) } }[0]

    /** Returns what a token adds. */
    public fun push(token: Long): String = text { Native.textPush(handle, token, it) }

    /** Returns what is still held back. */
    public fun finish(): String = text { Native.textFinish(handle, it) }

    override fun close() {
        Native.textClose(handle) // which refuses a handle that is closed
    }
}
