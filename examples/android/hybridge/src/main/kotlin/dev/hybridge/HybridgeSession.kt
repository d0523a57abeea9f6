package dev.hybridge

import java.io.File

/** How the prompts of a session were read, in tokens. reason: why the accelerator is not in use; empty while it is. */
public data class PromptsRead(
    val delegateInUse: Boolean,
    val delegateTokens: Long,
    val cpuTokens: Long,
    val reason: String,
)

/**
 * One conversation: a state that goes on, is kept and is rolled back. Tokens are ids; the app has the tokenizer.
 *
 * Calls block and may come from any thread: one that comes while another of this session runs waits for it. Sessions of one model
 * take turns, a round of a generation or a chunk of a prompt at a time. So call them from `Dispatchers.IO`, or collect
 * [HybridgeSession.flow]. [cancel] alone never waits.
 *
 * Every call throws [HybridgeException]: [Status.INVALID_TOKEN] for a token outside the vocabulary, [Status.NO_ROOM] where
 * the context is full, [Status.BUSY] from the session's own callback, [Status.INVALID_HANDLE] after [close].
 */
public class HybridgeSession internal constructor(private val handle: Long, private val info: ModelInfo) : AutoCloseable {
    private val turn = Any()

    /** The committed tokens. */
    public val tokens: LongArray get() = synchronized(turn) { filled { text, count -> Native.tokens(handle, text, count) } }

    /** The places of the text at which the accelerator began and stopped to read it, in turn. */
    public val delegated: LongArray
        get() = synchronized(turn) { filled { places, count -> Native.delegated(handle, places, count) } }

    /** How prompts were read, by the accelerator that the model was exported for and by the CPU; null without one. */
    public val promptsRead: PromptsRead?
        get() {
            val counts = LongArray(3)
            val reason = arrayOfNulls<ByteArray>(1)
            try {
                call { Native.promptsRead(handle, counts, reason) }
            } catch (refused: HybridgeException) {
                if (refused.status == Status.UNSUPPORTED) return null
                throw refused
            }
            return PromptsRead(counts[0] != 0L, counts[1], counts[2], reason[0]!!.decodeToString())
        }

    /** Commits a prompt of any length; the logits after its last token. */
    public fun prefill(prompt: LongArray): FloatArray = logits { Native.prefill(handle, prompt, it) }

    /** Commits a picture of [Artifact.picture], in a session of [Artifact.model]; the logits after it. */
    public fun prefillImage(picture: Picture): FloatArray = prefill(picture.ids)

    /** Commits one token; the logits after it. */
    public fun decode(token: Long): FloatArray = logits { Native.decode(handle, token, it) }

    /** Returns the logits after each of 1 to [ModelInfo.verifyLen] tokens, one after another; none is committed. */
    public fun verify(block: LongArray): FloatArray {
        if (block.size > info.verifyLen) {
            throw HybridgeException(Status.INVALID_TOKEN, "${block.size} tokens, and a block has at most ${info.verifyLen}")
        }
        return logits(block.size) { Native.verify(handle, block, it) }
    }

    /** Accepts the first [count] tokens of the verified block, or none of them. */
    public fun commit(count: Int): Unit = call { Native.commit(handle, count.toLong()) }

    /** Keeps the committed state in one of [ModelInfo.snapshotSlots] slots. */
    public fun snapshot(slot: Int): Unit = call { Native.snapshot(handle, slot.toLong()) }

    /** Goes back to what a slot keeps. */
    public fun restore(slot: Int): Unit = call { Native.restore(handle, slot.toLong()) }

    /** Returns the committed state; any number of them may be kept. */
    public fun checkpoint(): Checkpoint {
        val made = LongArray(1)
        call { Native.checkpointMake(handle, made) }
        return Checkpoint(made[0])
    }

    /** Goes on where a [checkpoint] of this model was made, bit for bit. All slots are empty then. */
    public fun resume(checkpoint: Checkpoint): Unit = call { Native.resume(handle, checkpoint.handle) }

    /**
     * Leaves the session at [text], without reading what it or a checkpoint of [cache] knows: so many tokens are returned.
     * Checkpoints of what it reads go into the cache. Where it fails, the session is at a beginning of the text.
     */
    public fun bringTo(text: LongArray, cache: PrefixCache? = null): Int {
        val known = LongArray(1)
        call { Native.bringTo(handle, cache?.handle ?: 0, text, known) }
        return known[0].toInt()
    }

    /** Empties the state and all slots. */
    public fun reset(): Unit = call { Native.reset(handle) }

    /** Writes the whole state, slots included; the file appears whole or not at all. */
    public fun save(file: File): Unit = call { Native.save(handle, terminated("the path", file.path)) }

    /** Goes on where [save] was called, bit for bit, in a session of the same model. */
    public fun load(file: File): Unit = call { Native.load(handle, terminated("the path", file.path)) }

    /**
     * Continues [prompt] and gives each token to [onToken], in this thread. Greedily and with a seed the text is the same with
     * every [drafter]. It ends after one of the model's `eosIds`, where the context is full, where [onToken] answers false or
     * throws (and is thrown on from here, as what [mask] throws), and at a [cancel].
     *
     * @param blockLength tokens that are verified at once; 0 for what is measured to be fastest.
     * @param mask what each token may be; null for any.
     * @param grammar what the text must be, in place of [mask]; null for any.
     * @throws HybridgeException with [Status.CANCELLED] where it was cancelled before its first token: nothing of it stays.
     */
    public fun generate(
        prompt: LongArray,
        maxNewTokens: Int = 64,
        drafter: Drafter = Drafter.Auto,
        blockLength: Int = 0,
        sampling: Sampling = Sampling(),
        mask: Mask? = null,
        grammar: Grammar? = null,
        onToken: OnToken? = null,
    ): Generated {
        val (options, draws) = wishes(maxNewTokens, blockLength, drafter, sampling, grammar)
        val counts = LongArray(5)
        call { Native.generate(handle, prompt, options, draws, mask, onToken, counts) }
        return generated(counts)
    }

    /** Ends the generation that runs or waits in this session, after its next token or between two chunks of its prompt. */
    public fun cancel() {
        Native.cancel(handle) // which refuses a handle that is closed
    }

    /** Cancels what runs, waits for its end and gives the state's memory back; a second one does nothing. */
    override fun close() {
        cancel()
        synchronized(turn) {
            val code = Native.sessionClose(handle)
            if (Status.of(code) == Status.BUSY) expectOk { code } // from the session's own callback
        }
    }

    private inline fun logits(count: Int = 1, body: (FloatArray) -> Int): FloatArray {
        val logits = FloatArray(count * info.vocabSize)
        call { body(logits) }
        return logits
    }

    private inline fun call(body: () -> Int): Unit = synchronized(turn) { expectOk(body) }
}
