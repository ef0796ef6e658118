#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace twofour {

/// A request as a server of HTTP/1.1 reads it.
struct ServerRequest {
  std::string method, path, query;            ///< the query without '?'
  std::map<std::string, std::string> fields;  ///< by names in small letters
  std::string field(const std::string& name) const;
};

/// The answer of the server.
struct ServerAnswer {
  int status = 200;
  std::vector<std::string> fields;  ///< "ETag: \"x\""
  std::string body;
  std::optional<uint64_t> announced;  ///< Content-Length, where it is to be another than the body's
  bool closes = false;                ///< the connection ends behind the body
};

/// A server on a port of its own of 127.0.0.1, for as long as it lives.
class HttpServer {
 public:
  using Handler = std::function<ServerAnswer(const ServerRequest&)>;
  explicit HttpServer(Handler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  /// "http://127.0.0.1:PORT".
  std::string origin() const;

 private:
  void accept_all();
  void serve(int fd);

  const Handler handler_;
  int listener_ = -1;
  int port_ = 0;
  std::mutex mutex_;
  bool stops_ = false;
  std::set<int> open_;
  std::vector<std::thread> connections_;
  std::thread acceptor_;
};

/// The part of `body` that the field Range asks for, as status 206; the whole where it asks for none, 416
/// where it asks for what is not there.
ServerAnswer answer_range(const ServerRequest& request, const std::string& body);

}  // namespace twofour
