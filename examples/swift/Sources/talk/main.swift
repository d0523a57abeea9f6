// A chat at a terminal over an artifact's folder: words in, words out.   talk FOLDER
// /undo takes the last message back, /retry answers it again, /save FILE and /load FILE keep the conversation.
import Foundation
import Hybridge

func show(_ piece: Piece) -> Bool {
  FileHandle.standardOutput.write(Data(piece.content.utf8))
  return true
}

func complain(_ error: Error) { FileHandle.standardError.write(Data("talk: \(error)\n".utf8)) }

func answer(_ chat: Chat, _ line: String) throws {
  if line == "/undo" { return try chat.undo() }
  if line == "/retry" { try chat.retry(onPiece: show); return }
  if line.hasPrefix("/save ") { return try chat.save(String(line.dropFirst(6))) }
  if line.hasPrefix("/load ") { return try chat.load(String(line.dropFirst(6))) }
  try chat.send(line, onPiece: show)
}

guard CommandLine.arguments.count == 2 else {
  FileHandle.standardError.write(Data("usage: talk FOLDER, which 'hybridge export' wrote\n".utf8))
  exit(2)
}
do {
  let chat = try Artifact(folder: CommandLine.arguments[1]).chat()
  while let line = readLine() {
    do { try answer(chat, line) } catch { complain(error) }
    print()
  }
} catch {
  complain(error)
  exit(1)
}
