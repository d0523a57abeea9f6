// examples/android as an app calls it, on a computer.   Talk MODEL.pte FOLDER ARTIFACT PICTURES TOOLS TOKEN ...

package talk

import dev.hybridge.Artifact
import dev.hybridge.Call
import dev.hybridge.Drafter
import dev.hybridge.Ending
import dev.hybridge.HybridgeException
import dev.hybridge.HybridgeModel
import dev.hybridge.HybridgeSession
import dev.hybridge.Message
import dev.hybridge.Piece
import dev.hybridge.PrefixCache
import dev.hybridge.Sampling
import dev.hybridge.Status
import dev.hybridge.flow
import dev.hybridge.resultsFlow
import java.io.File
import kotlin.concurrent.thread
import kotlinx.coroutines.flow.take
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking

fun expect(right: Boolean, what: () -> String) {
    if (!right) throw AssertionError(what())
}

fun refused(status: Status, body: () -> Unit) {
    val seen = runCatching(body).exceptionOrNull()
    expect(seen is HybridgeException && seen.status == status) { "$seen, and not $status" }
}

fun best(logits: FloatArray): Long = logits.indices.maxBy { logits[it] }.toLong()

class Gone : RuntimeException()

fun HybridgeSession.text(prompt: LongArray, most: Int, drafter: Drafter, sampling: Sampling = Sampling()): List<Long> {
    val text = mutableListOf<Long>()
    reset()
    val done = generate(prompt, most, drafter, sampling = sampling) { text.add(it) }
    expect(done.tokens == text.size && (done.verifies == 0 || drafter != Drafter.None)) { "$done" }
    return text
}

/** The model as its own draft model, of which every token is right, and the drafter inside it, where it has one. */
fun drafters(model: HybridgeModel, session: HybridgeSession, prompt: LongArray, plain: List<Long>) {
    session.reset()
    val drafted = mutableListOf<Long>()
    val done = session.generate(prompt, 20, Drafter.Model(model), blockLength = 4) { drafted.add(it) }
    expect(drafted == plain && done.accepted > done.proposed / 2) { "by itself: $drafted, $done" }
    if (model.info.draftLen > 0) {
        expect(session.text(prompt, 20, Drafter.Own) == plain) { "by its own drafter" }
    } else {
        refused(Status.INVALID_DRAFTER) { session.generate(longArrayOf(1), drafter = Drafter.Own) }
    }
}

fun masks(session: HybridgeSession, prompt: LongArray) {
    session.reset()
    val masked = mutableListOf<Long>()
    session.generate(
        prompt,
        20,
        blockLength = 4,
        mask = { text, logits -> logits.indices.forEach { if ((it + text.size) % 3 != 0) logits[it] = Float.NEGATIVE_INFINITY } },
    ) { masked.add(it) }
    expect(masked.withIndex().all { (i, token) -> (token + prompt.size + i) % 3 == 0L }) { "masked: $masked" }
    session.reset()
    refused(Status.INVALID_GRAMMAR) { session.generate(prompt, mask = { _, logits -> logits.fill(Float.NEGATIVE_INFINITY) }) }
    for (from in listOf(prompt.size, prompt.size + 3)) {
        session.reset()
        val thrown = runCatching {
            session.generate(prompt, blockLength = 4, mask = { text, _ -> if (text.size >= from) throw Gone() }) { true }
        }.exceptionOrNull()
        expect(thrown is Gone) { "thrown by the mask: $thrown" }
    }
}

fun checkpoints(model: HybridgeModel, session: HybridgeSession, prompt: LongArray, plain: List<Long>) {
    session.reset()
    session.prefill(prompt)
    val first = session.checkpoint()
    session.decode(plain[0])
    val second = session.checkpoint()
    expect(first.length == prompt.size && second.length == prompt.size + 1) { "${first.length}, ${second.length}" }
    expect(second.bytes in 1 until first.bytes) { "${first.bytes}, ${second.bytes} bytes" }
    model.openSession().use { other ->
        other.resume(second)
        expect(other.tokens.contentEquals(prompt + plain[0])) { "resume" }
        expect(best(other.decode(plain[1])) == plain[2]) { "decode" }
    }
    session.resume(first)
    expect(best(session.decode(plain[0])) == plain[1]) { "back" }
    first.close()
    first.close()
    refused(Status.INVALID_HANDLE) { session.resume(first) }
    second.close()

    refused(Status.INVALID_ARGUMENT) { PrefixCache(model, -1) }
    refused(Status.INVALID_ARGUMENT) { session.save(java.io.File("victim\u0000.state")) }
    refused(Status.INVALID_ARGUMENT) { session.bringTo(longArrayOf()) }
    val cache = PrefixCache(model, 1L shl 26)
    session.reset()
    val shorter = prompt.copyOf(prompt.size - 4)
    val known = listOf(shorter, prompt, prompt.copyOf(prompt.size - 2)).map { session.bringTo(it, cache) }
    expect(known == listOf(0, shorter.size, shorter.size)) { "known: $known" }
    expect(session.tokens.contentEquals(prompt.copyOf(prompt.size - 2))) { "brought" }
    cache.close()
    refused(Status.INVALID_HANDLE) { session.bringTo(prompt, cache) }
}

fun endings(session: HybridgeSession, prompt: LongArray, plain: List<Long>) {
    session.reset()
    val three = mutableListOf<Long>()
    session.generate(prompt) { three.add(it) && three.size < 3 }
    expect(three == plain.take(3)) { "ended by its callback: $three" }

    session.reset()
    val thrown = runCatching { session.generate(prompt) { throw Gone() } }.exceptionOrNull()
    expect(thrown is Gone) { "thrown by the callback: $thrown" }
    expect(session.tokens.size == prompt.size) { "after it: ${session.tokens.size}" }

    session.reset()
    refused(Status.BUSY) { session.generate(prompt) { session.decode(1); true } }
    refused(Status.BUSY) { session.generate(longArrayOf(1)) { session.close(); true } }

    session.reset()
    var given = 0
    session.generate(prompt, 50) { given++; thread { session.cancel() }.join(); true }
    expect(given == 1) { "cancelled after $given tokens" }

    session.reset()
    val collected = runBlocking { session.flow(prompt, 20).take(4).toList() }
    expect(collected == plain.take(4)) { "collected $collected" }
    session.reset()
    val all = runBlocking { session.flow(prompt, 20).toList() }
    expect(all == plain) { "collected $all" }
}

fun rollback(model: HybridgeModel, session: HybridgeSession, prompt: LongArray, plain: List<Long>, folder: File) {
    val vocabulary = model.info.vocabSize
    val saved = File(folder, "état 🦜") // a supplementary character: other bytes in JNI's strings
    session.reset()
    expect(best(session.prefill(prompt)) == plain[0]) { "prefill" }
    session.snapshot(0)
    val logits = session.verify(plain.take(2).toLongArray())
    expect(best(logits.copyOfRange(vocabulary, 2 * vocabulary)) == plain[2]) { "verify" }
    session.commit(1)
    session.save(saved)
    expect(saved.isFile) { "no ${saved.name} among ${folder.list()?.toList()}" }
    session.restore(0)
    expect(session.tokens.contentEquals(prompt)) { "restore" }
    model.openSession().use { other ->
        other.load(saved)
        expect(other.tokens.contentEquals(prompt + plain[0])) { "load" }
        expect(best(other.decode(plain[1])) == plain[2]) { "decode" }
    }
}

fun refusals(model: HybridgeModel, session: HybridgeSession, folder: File) {
    refused(Status.UNREADABLE_FILE) { HybridgeModel(File(folder, "none")) }
    refused(Status.INVALID_TOKEN) { session.prefill(longArrayOf()) }
    refused(Status.INVALID_TOKEN) { session.decode(-1) }
    refused(Status.INVALID_TOKEN) { session.verify(LongArray(model.info.verifyLen + 1)) }
    refused(Status.INVALID_ARGUMENT) { session.generate(longArrayOf(1), maxNewTokens = 0) }
    refused(Status.INVALID_ARGUMENT) { session.generate(longArrayOf(1), maxNewTokens = -1) }
    refused(Status.INVALID_ARGUMENT) { session.generate(longArrayOf(1), sampling = Sampling(temperature = -1.0)) }
    refused(Status.INVALID_ARGUMENT) { session.generate(longArrayOf(1), sampling = Sampling(temperature = 1.0, topK = -1)) }
    refused(Status.INVALID_COMMIT) { session.commit(1) }
    refused(Status.NO_ROOM) { session.prefill(LongArray(model.info.maxSeqLen + 1)) }
    refused(Status.UNREADABLE_FILE) { session.load(File(folder, "none")) }
}

/** A conversation over an artifact's folder, and what an app does with it; the first answer. */
fun chats(artifact: File, folder: File): String {
    val opened = Artifact(artifact)
    val chat = opened.chat()
    opened.close()
    refused(Status.INVALID_STATE) { chat.undo() }
    val pieces = mutableListOf<Piece>()
    val answer = chat.send("how to read a file", maxNewTokens = 40) { pieces.add(it) }
    val said = pieces.joinToString("") { it.content }
    expect(answer.ending == Ending.BY_LENGTH && answer.generated.tokens == 40 && answer.cachedTokens == 0) { "$answer" }
    expect(chat.messages == listOf(Message("user", "how to read a file"), Message("assistant", said))) { "${chat.messages}" }
    val file = File(folder, "chat.state")
    chat.save(file)
    chat.undo()
    expect(chat.messages.isEmpty()) { "${chat.messages}" }
    chat.load(file)
    val again = StringBuilder()
    expect(chat.retry(maxNewTokens = 40) { again.append(it.content); true }.cachedTokens > 0) { "read again" }
    expect(again.toString() == said) { "$again, and not $said" }
    runBlocking {
        val first = chat.flow("漢字 <|endoftext|> 👩", maxNewTokens = 30).take(2).toList()
        expect(first.size == 2) { "$first" }
        chat.reset()
        expect(chat.flow("how to read a file", maxNewTokens = 40).toList().joinToString("") { it.content } == said) { "a flow" }
    }
    val seen = runCatching { chat.send("x") { throw Gone() } }.exceptionOrNull()
    expect(seen is Gone) { "$seen" }
    expect(chat.send("x", stops = listOf("e")) { true }.ending == Ending.BY_STOP) { "no stop" }
    expect(chat.room > 0) { "no room" }
    refused(Status.NO_ROOM) { chat.send("word ".repeat(4000)) { true } }
    refused(Status.UNREADABLE_FILE) { chat.load(File(folder, "none")) }
    val without = runCatching { Artifact(folder) }.exceptionOrNull()
    expect("manifest.json" in without?.message.orEmpty()) { "$without" }
    refused(Status.INVALID_ARTIFACT) { Artifact(File(folder, "newer")) }
    chat.close()
    chat.close()
    refused(Status.INVALID_HANDLE) { chat.reset() }
    return said
}

const val TOOLS =
    """[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties":
    {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"], "additionalProperties": false}}}]"""

/** A chat with tools, which the model calls where it must. */
fun tools(artifact: File) {
    val chat = Artifact(artifact).use { it.chat(variables = """{"tone": "calm"}""", tools = TOOLS) }
    val calls = mutableListOf<Call>()
    chat.send("Where does it rain?", maxNewTokens = 200, toolChoice = "required") { calls += it.calls; true }
    expect(calls.isNotEmpty() && calls.all { it.name == "weather" && Regex("""\{"city": "(Oslo|Rome)"\}""").matches(it.arguments) }) { "$calls" }
    expect(chat.messages.last().calls == calls) { "${chat.messages}" }
    refused(Status.INVALID_ARGUMENT) { chat.giveResults(calls.map { "rain" } + "sun") { true } }
    chat.giveResults(calls.map { "rain" }, maxNewTokens = 5, toolChoice = "none") { true }
    val results = chat.messages.filter { it.role == "tool" }
    expect(results.map { it.content } == calls.map { "rain" }) { "$results" }
    expect(results.map { it.calls.single().id } == calls.map { it.id }) { "$results" }
    refused(Status.INVALID_STATE) { chat.giveResults(listOf("rain")) { true } }
    refused(Status.INVALID_GRAMMAR) { chat.send("x", toolChoice = "walk") { true } }
    chat.undo()
    expect(chat.messages.isEmpty()) { "${chat.messages}" }
    val flowing = runBlocking { chat.flow("Where?", maxNewTokens = 200, toolChoice = "weather").toList() }.flatMap { it.calls }
    runBlocking { chat.resultsFlow(flowing.map { "sun" }, maxNewTokens = 5, toolChoice = "none").toList() }
    expect(flowing.isNotEmpty() && chat.messages.count { it.role == "tool" } == flowing.size) { "$flowing" }
    chat.close()
    refused(Status.INVALID_ARGUMENT) { Artifact(artifact).use { it.chat(tools = "{") } }
}

/** Pictures in sessions and chats of an artifact that takes some; the ids of one of 30 x 20 pixels. */
fun pictures(artifact: File, folder: File): LongArray = Artifact(artifact).use { opened ->
    val rgb = ByteArray(3 * 30 * 20) { (it * it % 251).toByte() }
    val picture = opened.picture(rgb, 30, 20)
    val session = opened.model.openSession()
    val logits = session.prefillImage(picture)
    session.reset()
    expect(session.prefill(picture.ids).contentEquals(logits)) { "another picture" }
    expect(picture.encodings == 1) { "encoded ${picture.encodings} times" }
    refused(Status.INVALID_ARGUMENT) { opened.picture(rgb, 30, 21) }
    refused(Status.INVALID_ARGUMENT) { opened.picture(rgb, -30, -20) }
    refused(Status.INVALID_PICTURE) { opened.picture(ByteArray(0), 0, 0) }
    val narrow = runCatching { opened.picture(ByteArray(3 * 20_000), 20_000, 1) }.exceptionOrNull()
    expect("too long and narrow" in narrow?.message.orEmpty()) { "$narrow" }

    val chat = opened.chat()
    val said = StringBuilder()
    chat.send("What is this?", maxNewTokens = 5, pictures = listOf(picture)) { said.append(it.content); true }
    val room = chat.room
    val file = File(folder, "pictures.state")
    chat.save(file)
    chat.undo()
    val again = runBlocking { chat.flow("What is this?", maxNewTokens = 5, pictures = listOf(picture)).toList() }
    expect(again.joinToString("") { it.content } == said.toString()) { "$again, and not $said" }
    picture.close()
    refused(Status.INVALID_HANDLE) { chat.send("And?", pictures = listOf(picture)) { true } }
    chat.load(file)
    expect(chat.room == room) { "${chat.room} tokens of room, and not $room" }
    chat.close()
    refused(Status.INVALID_PICTURE) { session.reset(); session.prefillImage(picture) }
    session.close()
    picture.ids
}

fun main(arguments: Array<String>) {
    val folder = File(arguments[1])
    val prompt = arguments.drop(5).map { it.toLong() }.toLongArray()
    val model = HybridgeModel(File(arguments[0]))
    val session = model.openSession()
    refusals(model, session, folder)
    val plain = session.text(prompt, 20, Drafter.None)
    expect(session.text(prompt, 20, Drafter.PromptLookup) == plain) { "prompt lookup" }
    val heat = Sampling(temperature = 0.9, topK = 30, topP = 0.95, repetitionPenalty = 1.2, seed = 11)
    val drawn = session.text(prompt, 20, Drafter.None, heat)
    expect(session.text(prompt, 20, Drafter.PromptLookup, heat) == drawn) { "prompt lookup, drawn" }
    session.text(prompt, 20, Drafter.PromptLookup, Sampling(temperature = 0.5, minP = 0.1))
    drafters(model, session, prompt, plain)
    masks(session, prompt)
    endings(session, prompt, plain)
    rollback(model, session, prompt, plain, folder)
    checkpoints(model, session, prompt, plain)

    // Threads wait for each other; a close ends what runs, and what is closed stays closed.
    session.reset()
    List(3) { thread { repeat(20) { session.prefill(longArrayOf(1)) } } }.forEach { it.join() }
    expect(session.tokens.size == 60) { "${session.tokens.size} tokens of three threads" }
    session.reset()
    val closing = thread(start = false) { session.close() }
    runCatching { session.generate(prompt, 60) { if (!closing.isAlive) closing.start(); Thread.sleep(1); true } }
    closing.join()
    refused(Status.INVALID_HANDLE) { session.reset() }
    session.close()
    model.close()
    model.close()
    refused(Status.INVALID_HANDLE) { model.openSession() }

    tools(File(arguments[4]))
    val said = chats(File(arguments[2]), folder)
    println("picture ${pictures(File(arguments[3]), folder).joinToString(" ")}")
    println("chat ${said.encodeToByteArray().joinToString(" ")}")
    println("version ${HybridgeModel.version}")
    println(plain.joinToString(" "))
    println(drawn.joinToString(" "))
}
