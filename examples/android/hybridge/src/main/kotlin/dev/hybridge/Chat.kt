package dev.hybridge

import java.io.File

/**
 * An artifact's folder: its program, its tokenizer, and how its chats are written. Open it once for any number of chats.
 *
 * The folder must be one of the file system's: copy the assets into `context.filesDir` first.
 *
 * @param context most tokens of a text, up to what the artifact holds, which is the default; another number is
 * [Status.INVALID_ARGUMENT].
 * @throws HybridgeException with [Status.UNREADABLE_FILE], [Status.INVALID_ARTIFACT] or [Status.MISSING_OPERATOR].
 */
public class Artifact(folder: File, context: Int? = null) : AutoCloseable {
    private val handle = LongArray(1).also { made -> expectOk { Native.artifactOpen(terminated("the path", folder.path), made) } }[0]

    /**
     * Returns a chat with a state of its own.
     *
     * @param system what the model is told before the first message.
     * @param checkpointBytes most memory for states to go back to.
     * @param variables more of them for the chat template, as a JSON object such as `{"reasoning_effort": "low"}`.
     * @param tools that the model may call, a list in JSON as OpenAI's API has it; their results go to [Chat.giveResults].
     * @throws HybridgeException with [Status.INVALID_ARTIFACT] if the model has no chat template, [Status.INVALID_TEMPLATE] if it
     * refuses the system's message, [Status.UNSUPPORTED] if it has no switch for thinking, and [Status.INVALID_ARGUMENT] for
     * variables and tools that are not what they must be; the message says why.
     */
    public fun chat(
        system: String? = null,
        thinking: Thinking = Thinking.AS_USUAL,
        checkpointBytes: Long = 256L shl 20,
        variables: String? = null,
        tools: String? = null,
    ): Chat {
        val chat = LongArray(1)
        val told = system?.let { terminated("the system prompt", it) }
        val more = variables?.let { terminated("the variables", it) }
        val offered = tools?.let { terminated("the tools", it) }
        expectOk { Native.chatOpen(handle, told, thinking.ordinal, checkpointBytes, more, offered, chat) }
        return Chat(chat[0])
    }

    /** Its program, for sessions of tokens and pictures; it is closed with the artifact. */
    public val model: HybridgeModel =
        HybridgeModel(LongArray(1).also { found -> expectOk { Native.artifactModel(handle, found) } }[0], context)

    /**
     * Returns a picture for chats and sessions of this artifact, of any size: it is resized as the model's processor does it.
     *
     * @param rgb red, green and blue of each pixel, row by row.
     * @throws HybridgeException with [Status.INVALID_PICTURE] for a model without pictures, other than 3 bytes a pixel, and a
     * picture that is too large, or too long and narrow; the message says which.
     */
    public fun picture(rgb: ByteArray, width: Int, height: Int): Picture {
        val picture = LongArray(1)
        expectOk { Native.pictureOpen(model.handle, rgb, width, height, picture) }
        return Picture(picture[0])
    }

    /** Returns the grammar of JSON that fits a schema. Throws with [Status.INVALID_GRAMMAR] for what cannot be followed. */
    public fun jsonSchema(schema: String): Grammar = Grammar.jsonSchema(tokenizer, schema)

    /** Returns the grammar of what a regular expression matches as a whole, in Rust's syntax; throws likewise. */
    public fun regex(pattern: String): Grammar = Grammar.regex(tokenizer, pattern)

    /** How the model is meant to be sampled, for its answers. Greedy if its generation_config.json does not say. */
    public val sampling: Sampling
        get() {
            val found = DoubleArray(6)
            val topK = LongArray(1)
            expectOk { Native.artifactSampling(handle, found, topK) }
            val penalties = Sampling(presencePenalty = found[4], frequencyPenalty = found[5])
            return penalties.copy(
                temperature = found[0], topK = topK[0].toInt(), topP = found[1], minP = found[2], repetitionPenalty = found[3],
            )
        }

    private val tokenizer get() = LongArray(1).also { found -> expectOk { Native.artifactTokenizer(handle, found) } }[0]

    /** May come before its chats'; a second one does nothing. */
    override fun close() {
        Native.artifactClose(handle) // which refuses a handle that is closed
    }
}

/** Whether the model thinks before it answers; as usual: as its chat template does by itself. */
public enum class Thinking { AS_USUAL, ON, OFF }

/** What ended an answer: the model, a stop string, the most tokens or a full context, or the caller. */
public enum class Ending { BY_MODEL, BY_STOP, BY_LENGTH, BY_CALLER }

/** A call of a tool; arguments: a JSON object. */
public data class Call(val name: String, val arguments: String, val id: String = "")

/** A message of a chat; role: `system`, `user`, `assistant` or `tool`. calls: of an answer; of a tool's message the call that it answers. */
public data class Message(val role: String, val content: String, val reasoning: String = "", val calls: List<Call> = emptyList())

/** What a token adds to an answer, in whole characters, to what is said or to the reasoning before it; and complete calls. */
public data class Piece(val content: String, val reasoning: String, val calls: List<Call> = emptyList())

/** What an answer took: tokens that were read for it, and those that were known. droppedMessages: the oldest ones, which left no room. */
public data class Answer(
    val ending: Ending,
    val promptTokens: Int,
    val cachedTokens: Int,
    val generated: Generated,
    val droppedMessages: Int = 0,
)

/** Takes what a token adds to an answer, in UTF-8; answers false to end it. For [Native]; [Chat] gives texts. */
public fun interface OnPiece {
    /** calls: id, name and arguments of each. */
    public fun take(content: ByteArray, reasoning: ByteArray, calls: Array<ByteArray>): Boolean
}

/** Returns calls of their ids, names and arguments. */
private fun calls(words: List<String>): List<Call> = words.chunked(3).map { (id, name, arguments) -> Call(name, arguments, id) }

/**
 * A conversation: words in, words out. Its state stays between turns; [undo] and [retry] read nothing again.
 *
 * Calls block and may come from any thread: one that comes while another runs waits for it. So call them from `Dispatchers.IO`,
 * or collect [Chat.flow]. [cancel] alone never waits. Where an answer fails or is cancelled before its first token, nothing has
 * changed ([Status.CANCELLED]); after that, what was said stays. [Status.NO_ROOM] is a message that leaves no room for an answer.
 */
public class Chat internal constructor(private val handle: Long) : AutoCloseable {
    private val turn = Any()

    /** The conversation so far. */
    public val messages: List<Message>
        get() = synchronized(turn) {
            val counts = LongArray(2)
            expectOk { Native.chatMessages(handle, null, counts) }
            val found = arrayOfNulls<Array<ByteArray>>(counts[0].toInt())
            expectOk { Native.chatMessages(handle, found, counts) }
            found.map { message ->
                val words = message!!.map { it.decodeToString() }
                Message(words[0], words[1], words[2], calls(words.drop(3)))
            }
        }

    /** Tokens that still fit. */
    public val room: Int get() = LongArray(2).also { counts -> call { Native.chatMessages(handle, null, counts) } }[1].toInt()

    /**
     * Answers a message; what [onPiece] throws ends the answer, and is thrown on.
     *
     * @param pictures of [Artifact.picture], before the message; they may be closed once it is answered.
     * @param maxNewTokens null until the model ends its answer, or the context is full.
     * @param sampling null for the model's own, [Artifact.sampling].
     * @param stopAfterReasoning [stops] end the answer, but not the reasoning before it.
     * @param grammar what the answer must be; it begins after the reasoning of a model that thinks. Null for any.
     * @param toolChoice of a chat with tools: `auto` or null if the model may call them, `none`, `required`, or the name of one.
     */
    public fun send(
        message: String,
        maxNewTokens: Int? = null,
        drafter: Drafter = Drafter.Auto,
        sampling: Sampling? = null,
        stops: List<String> = emptyList(),
        grammar: Grammar? = null,
        pictures: List<Picture> = emptyList(),
        toolChoice: String? = null,
        stopAfterReasoning: Boolean = false,
        onPiece: (Piece) -> Boolean,
    ): Answer = answer(maxNewTokens, drafter, sampling, stops, stopAfterReasoning, grammar, toolChoice, onPiece) {
            options, draws, ends, choice, take, answered ->
        expectOk { Native.chatShow(handle, LongArray(pictures.size) { pictures[it].handle }) }
        Native.chatSend(handle, message.encodeToByteArray(), options, draws, ends, choice, take, answered)
    }

    /** Answers the results of the tools that the last answer called, one for each of its calls, in their order; see [send]. */
    public fun giveResults(
        results: List<String>,
        maxNewTokens: Int? = null,
        drafter: Drafter = Drafter.Auto,
        sampling: Sampling? = null,
        stops: List<String> = emptyList(),
        grammar: Grammar? = null,
        toolChoice: String? = null,
        stopAfterReasoning: Boolean = false,
        onPiece: (Piece) -> Boolean,
    ): Answer = answer(maxNewTokens, drafter, sampling, stops, stopAfterReasoning, grammar, toolChoice, onPiece) {
            options, draws, ends, choice, take, answered ->
        val given = results.map { it.encodeToByteArray() }.toTypedArray()
        Native.chatGiveResults(handle, given, options, draws, ends, choice, take, answered)
    }

    /** Answers the last message, or the last results, again. */
    public fun retry(
        maxNewTokens: Int? = null,
        drafter: Drafter = Drafter.Auto,
        sampling: Sampling? = null,
        stops: List<String> = emptyList(),
        grammar: Grammar? = null,
        toolChoice: String? = null,
        stopAfterReasoning: Boolean = false,
        onPiece: (Piece) -> Boolean,
    ): Answer = answer(maxNewTokens, drafter, sampling, stops, stopAfterReasoning, grammar, toolChoice, onPiece) {
            options, draws, ends, choice, take, answered ->
        Native.chatRetry(handle, options, draws, ends, choice, take, answered)
    }

    /** Goes on with the last answer, such as one that ended by its length; [onPiece] gets what is new. */
    public fun continueAnswer(
        maxNewTokens: Int? = null,
        drafter: Drafter = Drafter.Auto,
        sampling: Sampling? = null,
        stops: List<String> = emptyList(),
        stopAfterReasoning: Boolean = false,
        onPiece: (Piece) -> Boolean,
    ): Answer = answer(maxNewTokens, drafter, sampling, stops, stopAfterReasoning, null, null, onPiece) {
            options, draws, ends, choice, take, answered ->
        Native.chatContinue(handle, options, draws, ends, choice, take, answered)
    }

    /** Tells the model something else before the first message; an empty text for nothing. */
    public fun setSystem(system: String): Unit = call { Native.chatSetSystem(handle, system.encodeToByteArray()) }

    /** Takes the last message and its answer back, with all calls and results between them. */
    public fun undo(): Unit = call { Native.chatUndo(handle) }

    /** Begins anew. */
    public fun reset(): Unit = call { Native.chatReset(handle) }

    /** Writes the conversation and the state; the file appears whole or not at all. */
    public fun save(file: File): Unit = call { Native.chatSave(handle, terminated("the path", file.path)) }

    /** Goes on with a saved conversation of this artifact. */
    public fun load(file: File): Unit = call { Native.chatLoad(handle, terminated("the path", file.path)) }

    /** Ends the answer that runs or waits. */
    public fun cancel() {
        Native.chatCancel(handle) // which refuses a handle that is closed
    }

    /** Cancels what runs, waits for its end and gives the memory back; a second one does nothing. */
    override fun close() {
        cancel()
        synchronized(turn) {
            val code = Native.chatClose(handle)
            if (Status.of(code) == Status.BUSY) expectOk { code } // from the chat's own callback
        }
    }

    private fun answer(
        maxNewTokens: Int?,
        drafter: Drafter,
        sampling: Sampling?,
        stops: List<String>,
        stopAfterReasoning: Boolean,
        grammar: Grammar?,
        toolChoice: String?,
        onPiece: (Piece) -> Boolean,
        ask: (LongArray, DoubleArray, Array<ByteArray>, ByteArray?, OnPiece, LongArray) -> Int,
    ): Answer {
        val (options, draws) = wishes(maxNewTokens, 0, drafter, sampling, grammar, stopAfterReasoning)
        val ends = stops.map { terminated("a stop string", it) }.toTypedArray()
        val answered = LongArray(9)
        val take = OnPiece { content, reasoning, words ->
            onPiece(Piece(content.decodeToString(), reasoning.decodeToString(), calls(words.map { it.decodeToString() })))
        }
        call { ask(options, draws, ends, toolChoice?.let { terminated("the choice of a tool", it) }, take, answered) }
        return Answer(
            Ending.entries[answered[0].toInt()], answered[1].toInt(), answered[2].toInt(), generated(answered, 3), answered[8].toInt(),
        )
    }

    private inline fun call(body: () -> Int): Unit = synchronized(turn) { expectOk(body) }
}
